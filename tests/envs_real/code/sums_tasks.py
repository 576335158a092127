"""A task set of verifiers."""

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def right(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def letters(self, trace) -> float:
        return len(trace.last_reply)


class SumsConfig(vf.TasksetConfig):
    largest: int = 5


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for a in range(self.config.largest):
            for b in range(self.config.largest):
                data = Sum(prompt=f"{a} + {b} = ?", system_prompt="Add.", answer=str(a + b))
                yield SumTask(data, self.config.task)


__all__ = ["Sums"]
