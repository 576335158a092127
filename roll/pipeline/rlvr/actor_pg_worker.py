"""ROLL's name for the worker whose loss is chosen by `pg_variant`; here every training worker is one."""

from roll.pipeline.base_worker import TrainWorker as ActorPGWorker

__all__ = ["ActorPGWorker"]
