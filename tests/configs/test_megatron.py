import pytest

from roll.compat.roll.translation import translate
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.configs.problems import ConfigError
from roll.core.configs.rlvr import RLVRConfig
from roll.core.configs.worker import ActorTrainConfig
from roll.plan.rules.backend_rules import megatron_problems
from roll.plan.rules.loading import load_config


def actor(devices, **options):
    strategy = {"strategy_name": "megatron_train", "strategy_config": options}
    return load_config(ActorTrainConfig, {"strategy_args": strategy, "device_mapping": devices})


@pytest.mark.parametrize(
    ("tensor", "pipeline", "expected"),
    [(1, 1, (0, 1, 2, 3)), (2, 1, (0, 0, 1, 1)), (1, 2, (0, 1, 0, 1)), (2, 2, (0, 0, 0, 0)), (4, 1, (0, 0, 0, 0))],
)
def test_ranks_that_share_a_model_are_given_the_same_samples(tensor, pipeline, expected):
    role = actor("0-3", tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)
    assert role.data_parallel_ranks == expected
    assert role.data_parallel_size == max(expected) + 1


@pytest.mark.parametrize(
    ("tensor", "pipeline", "context", "ranks"),
    [(2, 2, 1, 8), (4, 1, 1, 8), (1, 4, 1, 8), (2, 1, 1, 6), (3, 2, 1, 12), (2, 2, 2, 16), (1, 1, 2, 8), (1, 2, 4, 16)],
)
def test_data_parallel_ranks_are_those_of_megatron(tensor, pipeline, context, ranks):
    parallel_state = pytest.importorskip("megatron.core.parallel_state")
    generator = parallel_state.RankGenerator(
        tp=tensor, ep=1, dp=ranks // (tensor * pipeline * context), pp=pipeline, cp=context, order="tp-cp-ep-dp-pp"
    )
    expected = {rank: index for group in generator.get_ranks("dp") for index, rank in enumerate(group)}
    role = actor(
        f"0-{ranks - 1}",
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
    )
    assert role.data_parallel_ranks == tuple(expected[rank] for rank in range(ranks))


def test_other_back_ends_give_each_device_its_own():
    role = load_config(ActorTrainConfig, {"device_mapping": "0-2"})
    assert role.data_parallel_ranks == (0, 1, 2) and role.data_parallel_size == 3


def test_misspelt_option_is_answered_with_the_nearest_name():
    with pytest.raises(
        ConfigError, match=r"tensor_model_paralel_size = 2: unknown key; fix: did you mean tensor_model_parallel_size"
    ):
        actor("0", tensor_model_paralel_size=2)


@pytest.mark.parametrize(
    ("options", "ranks", "attention", "message"),
    [
        (
            {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
            6,
            "sdpa",
            "actor_train.device_mapping = [0, 1, 2, 3, 4, 5]: 6 devices, not a multiple of tensor_model_parallel_size 2 x "
            'pipeline_model_parallel_size 2 x context_parallel_size 1 = 4; fix: "0-7": 8 devices',
        ),
        (
            {"expert_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2},
            12,
            "sdpa",
            "12 devices, not a multiple of expert_model_parallel_size 4 x expert_tensor_parallel_size 2 x "
            'pipeline_model_parallel_size 2 = 16; fix: "0-15": 16 devices',
        ),
        ({"account_for_loss_in_pipeline_split": True}, 1, "sdpa", "has no effect: there is one stage"),
        ({"recompute_num_layers": 2}, 1, "sdpa", "recompute_num_layers = 2: belongs to whole layers"),
        ({}, 1, "eager", "actor_train.model_args.attn_implementation = 'eager'"),
    ],
)
def test_contradictions_are_named(options, ranks, attention, message):
    (problem,) = megatron_problems("actor_train", MegatronConfig(**options), range(ranks), attention)
    assert message in str(problem)


def translated(**options):
    strategy = {"strategy_name": "megatron_train", "strategy_config": options}
    return translate({"actor_train": {"strategy_args": strategy}}, RLVRConfig)


@pytest.mark.parametrize("name", ["fp8", "num_layers_in_first_pipeline_stage"])
def test_what_is_not_there_may_stand_as_long_as_it_is_off(name):
    key = f"actor_train.strategy_args.strategy_config.{name}"
    off, on = translated(**{name: None}), translated(**{name: 4})
    assert [note.key for note in off.without_effect] == [key] and not off.lacking
    assert [note.key for note in on.lacking] == [key]


def test_sizes_under_other_names_and_null_are_read():
    got = translated(context_model_parallel_size=2, expert_model_parallel_size=None, virtual_pipeline_model_parallel_size=4)
    assert not got.lacking
    assert [note.key.rpartition(".")[2] for note in got.without_effect] == ["virtual_pipeline_model_parallel_size"]
    assert got.mapping["actor_train"]["strategy_args"]["strategy_config"] == {
        "context_parallel_size": 2,
        "expert_model_parallel_size": 1,
    }
