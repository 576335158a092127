python3 -m verl.experimental.one_step_off_policy.main_ppo \
    data.train_files=data/train.parquet \
    data.train_batch_size=96 \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=owner/model \
    actor_rollout_ref.actor.ppo_mini_batch_size=48 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.n=5 \
    trainer.n_gpus_per_node=6 \
    rollout.n_gpus_per_node=2
