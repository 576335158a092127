"""Boxes with labels: ROLL's numbers, honest answers, hostile ones, and where this differs from ROLL on purpose."""

import asyncio
import itertools
import json
import time
from pathlib import Path

import pytest
from detection_answers import asked, tagged

from roll.core.data.sample import Prompt, Sample, VersionSpan
from roll.graders import average_precision
from roll.graders.detection import SCORES, DetectionRewardWorker, labelled

pytest.importorskip("pycocotools", reason="needs requirements/detection.txt")

CONFIG = {"timeout_s": 5.0, "max_concurrency": 1}
RATIO = {**dict.fromkeys(SCORES, 1.0), "iou_completeness": 0.3}
CAT, DOG = {"bbox_2d": [0, 0, 100, 100], "label": "cat"}, {"bbox_2d": [200, 200, 300, 400], "label": "dog"}
TRUTH = tagged([CAT, DOG], before="")
FORM = 0.1 / 1.1
"""What the form alone earns."""
ROLLS = json.loads(Path(__file__).with_name("detection_scores.json").read_text())
"""Of each drawn answer the reward, and the two scores by overlap and mAP, as ROLL's verifier (commit 8eb27cc2) computes them; in
its greedy_match_by_iou_max_iou_first the indices of the loops had names of their own, so that it takes the pair that it means."""


def graded(response, truth=TRUTH, row=None, step=0, policy="", **arguments):
    given = {"reward_model": {"verifier_parm": {"det_reward_ratio": RATIO}}} if row is None else row
    sample = Sample(Prompt("a", [1], "?", "a", "a", truth, given), 0, [2], [0.0], [VersionSpan(0, 1, step)], "stop")
    sample.response_text = response

    async def judged():
        worker = DetectionRewardWorker({**CONFIG, "policy": str(policy), "reward_args": arguments})
        await worker.start()
        return await worker.result(sample)

    return asyncio.run(judged())


def test_scores_are_rolls():
    answers = list(asked(len(ROLLS)))
    assert len(answers) == 210 and len({each.kind for each in answers}) == 35
    for each, (reward, *scores) in zip(answers, ROLLS, strict=True):
        row = {"reward_model": {"verifier_parm": {"det_reward_ratio": each.ratio}}}
        result = graded(each.response, each.truth, row, each.step, iou_threshold=each.threshold, total_steps=100)
        assert result.value == pytest.approx(reward, abs=1e-6), each
        if result.parts["size_penalty"] > 1e-9:  # else they weigh nothing, and are not computed
            found = [result.parts[name] for name in ("iou_max_iou_first", "iou_max_label_first", "map")]
            assert found == pytest.approx(scores, abs=1e-6), each


def test_exact_answers_earn_1_in_any_order_and_in_the_form_of_the_solution():
    worker = DetectionRewardWorker(CONFIG)
    for response in (tagged([CAT, DOG]), tagged([DOG, CAT]), worker.solution(TRUTH), worker.solution(json.dumps([CAT, DOG]))):
        assert graded(response).value == pytest.approx(1.0, abs=1e-12)
    assert graded(tagged([CAT, DOG]), truth=json.dumps([CAT, DOG])).value == pytest.approx(1.0, abs=1e-12)


def test_hostile_answers_earn_the_form_at_most_and_take_no_time():
    grid = [{"bbox_2d": [x, y, x + 50, y + 50], "label": "cat"} for x, y in itertools.product(range(0, 1000, 25), repeat=2)]
    hostile = {
        "": 0, "no box": 0, tagged("[]"): 0, tagged("[" * 100_000): 0, tagged('{"a":' * 20_000): 0, "<answer>" * 12_500: 0,
        "\n<answer>\n" * 10_000: 0, "\n</answer>" * 10_000: 0, tagged("'" * 100_000): 0, tagged("},[{" * 20_000): 0,
        tagged('[{"bbox_2d": [NaN, 0, 1, 1], "label": "cat"}]'): 0, tagged('[{"bbox_2d": [0, 0, 1e999, 1], "label": "cat"}]'): 0,
        tagged(f'[{{"bbox_2d": [0, 0, {"9" * 4000}, 1], "label": "cat"}}]'): 0,
        tagged([CAT | {"bbox_2d": {"x": 0}}, [CAT], 5, None]): 0,
        tagged(grid): FORM, tagged(grid[:42]): FORM, tagged([CAT | {"bbox_2d": [0, 0, 1000, 1000]}]): FORM,
        tagged([CAT | {"label": "c" * 100_000}]): FORM + 0.6 * 0.3 * 0.75 / 5 / 1.1,
        tagged([CAT | {"bbox_2d": [-1e6, -1e6, 1e6, 1e6]}]): FORM,
        tagged([CAT | {"bbox_2d": [i / 1000, 0, 100, 100]} for i in range(2000)]): FORM,
    }  # fmt: skip
    for response, most in hostile.items():
        started = time.process_time()
        result = graded(response)
        assert result.value == pytest.approx(most, abs=1e-9), response[:60]
        assert time.process_time() - started < 5, response[:60]


def test_the_row_says_what_weighs_and_reward_args_where_it_does_not():
    half = [CAT | {"bbox_2d": [0, 0, 100, 50]}, DOG]  # mAP50 is 1: an overlap of a half counts
    row = {"reward_model": {"accuracy_ratio": 1.0, "format_ratio": 0.0, "verifier_parm": {"det_reward_ratio": {"map50": 1.0}}}}
    assert graded(tagged(half), row=row).value == pytest.approx(1.0, abs=1e-12)
    row["reward_model"]["verifier_parm"] = {"det_reward_ratio": {"map75": 0.5, "map": None}}
    assert graded(tagged(half), row=row).value == pytest.approx(0.5, abs=1e-12)
    assert graded(tagged(half), row={}, det_reward_ratio={"map50": 1}).value == pytest.approx(1.0, abs=1e-12)
    for wrong, said in (({}, "must weigh one of"), ({"map": 2}, "from 0 to 1"), ({"map": "1"}, "from 0 to 1"), (5, "must weigh")):
        result = graded(tagged(half), row={}, det_reward_ratio=wrong)
        assert result.value is None and said in result.error
    assert "both 0" in graded(tagged(half), row={}, det_reward_ratio=RATIO, accuracy_ratio=0, format_ratio=0).error
    assert "no list of boxes" in graded(tagged(half), truth="<answer>[]</answer>").error


def test_thresholds(monkeypatch):
    near = [CAT | {"bbox_2d": [0, 0, 100, 90]}, DOG]  # overlaps of 0.9 and 1
    ratio = {"iou_max_label_first": 1.0}

    def earned(step=0, **arguments):
        return graded(tagged(near), row={}, step=step, det_reward_ratio=ratio, format_ratio=0, **arguments).value

    assert earned() == pytest.approx((9 * 0.95 + 2 * 0.5) / 11)
    assert [earned(iou_threshold=t) for t in (0.85, "0.95")] == pytest.approx([0.95, 0.5])
    assert [earned(s, iou_threshold="dynamic", total_steps=100) for s in (0, 10, 11, 99)] == pytest.approx([0.95, 0.95, 0.5, 0.5])
    monkeypatch.setenv("DET_IOU_THRESHOLD", "0.99")
    assert earned() == pytest.approx(0.5)
    for wrong in ("0.6000001", "half", "nan", True):
        with pytest.raises(ValueError, match=r"iou_threshold .* must be one of average"):
            earned(iou_threshold=wrong)
    with pytest.raises(ValueError, match="total_steps, the run's max_steps"):
        earned(iou_threshold="dynamic")


@pytest.mark.slow
def test_pixels_of_qwen2_5_vl_become_parts_of_1000_by_the_size_that_it_sees(tmp_path):
    from PIL import Image
    from tiny_vision import MODELS, save

    from roll.strategies.vision.families import family_of

    rule = {"det_reward_ratio": RATIO, "det_verifier_normalized": True}
    row = {"image_sizes": [[100, 60]], "reward_model": {"verifier_parm": rule}}
    for name in ("qwen2.5-vl", "qwen3-vl"):
        folder = save(MODELS[name](), tmp_path / name)
        family = family_of(folder)
        _, rows, columns = family.view(Image.new("RGB", (100, 60))).inputs["image_grid_thw"][0].tolist()
        patch = family.processor.patch_size
        width, height = (columns * patch, rows * patch) if name == "qwen2.5-vl" else (1000, 1000)
        assert [width, height] != [100, 60]
        pixels = {"bbox_2d": [0, 0, width / 2, height / 4], "label": "cat"}
        truth = tagged([{"bbox_2d": [0, 0, 500, 250], "label": "cat"}], before="")
        assert graded(tagged([pixels]), truth, row, policy=folder).value == pytest.approx(1.0, abs=1e-12), name
    assert "no image" in graded(tagged([pixels]), truth, row | {"image_sizes": []}, policy=tmp_path / "qwen2.5-vl").error


def test_what_differs_from_roll_on_purpose():
    [(_, label)] = labelled(tagged('[{"bbox_2d": [0, 0, 9, 9], "label": "Baker\'s rack"}]'))
    assert label == "baker's rack"
    line = CAT | {"bbox_2d": [5, 0, 5, 9]}
    assert labelled(tagged([line, CAT | {"bbox_2d": [0, 0, 2e6, 9]}, CAT])) == labelled(tagged([CAT])), (
        "no area; beyond a million"
    )


def test_without_the_package_it_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(average_precision, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs pycocotools, which is not installed: pip install 'roll\[detection\]'"):
        DetectionRewardWorker(CONFIG)
