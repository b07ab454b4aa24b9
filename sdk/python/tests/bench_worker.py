"""A worker that does nothing, for perdure-bench --scenario sdks."""

import perdure

worker = perdure.Worker(slots=64, announce=False)


@worker.task("bench")
def bench(input: object) -> int:
    return 1


worker.run()
