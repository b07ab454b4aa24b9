"""An agent of Pydantic AI that survives kill -9. CI checks the syntax of this file alone: its packages can't be
installed everywhere, so nothing here has been executed by a test. It is written for pydantic-ai 1.

Each call of the model is a step, and so is each tool: an answer that was paid for is never asked for again, and a tool
is not called twice for one answer. The loop of Pydantic AI itself is not recorded. It is executed anew after a crash,
and gets the recorded answers.

    pip install pydantic-ai
    MODEL=openai:gpt-4o PERDURE_URL=… PERDURE_KEY=… PYTHONPATH=sdk/python python3 agent.py
    perdure run helper --input '"How much disk space has alpha?"'
"""

import os
from typing import Any

import perdure
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

MODEL = os.environ.get("MODEL", "openai:gpt-4o")

worker = perdure.Worker()


class StepModel(WrapperModel):
    """A model whose calls are steps of a run. Messages have times in them, so a step is not compared with them."""

    def __init__(self, wrapped: Any, ctx: perdure.Context):
        super().__init__(wrapped)
        self.ctx = ctx

    async def request(self, messages: list[ModelMessage], model_settings: ModelSettings | None,
                      model_request_parameters: ModelRequestParameters) -> ModelResponse:
        async def ask() -> Any:
            answer = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([answer], mode="json")
        recorded = await self.ctx.step("model", ask, timeout=180, retries=perdure.Retry(attempts=5, first=1.0))
        answer = ModelMessagesTypeAdapter.validate_python(recorded)[0]
        assert isinstance(answer, ModelResponse)
        return answer

    def request_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a step has its answer whole: call run, and not run_stream")


assistant = Agent(deps_type=perdure.Context, instructions="Answer in one sentence.")


@assistant.tool(sequential=True)  # a context makes one call at a time
async def disk_space(run: RunContext[perdure.Context], host: str) -> str:
    """Says how much disk space a host has."""
    return await run.deps.step("disk_space", lambda: "%s has 7 GB left" % host, about=host)


@worker.agent("helper", timeout=3600)
async def helper(ctx: perdure.Context, question: str) -> str:
    result = await assistant.run(question, model=StepModel(MODEL, ctx), deps=ctx)
    return result.output


if __name__ == "__main__":
    worker.run()
