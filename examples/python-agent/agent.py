"""An agent with tools that survives kill -9: a loop around any model with the chat-completions API of OpenAI.

Each call of the model is a step, and so is each tool: an answer that was paid for is never asked for again, and a tool
is not called twice for one answer. Only the standard library and perdure are needed.

    perdure mock-model &
    MODEL_URL=http://127.0.0.1:7374/v1 PERDURE_URL=… PERDURE_KEY=… PYTHONPATH=sdk/python python3 agent.py
    perdure run assistant --input '"How much disk space has alpha?"'
"""

import json
import os
import urllib.error
import urllib.request

import perdure

URL = os.environ.get("MODEL_URL", "http://127.0.0.1:7374/v1")
MODEL = os.environ.get("MODEL", "mock")
KEY = os.environ.get("MODEL_KEY", "")
MAX_TURNS = 20

worker = perdure.Worker()


def disk_space(host: str) -> str:
    """The tool. It has an effect here: a line of the file TOOL_LOG."""
    if os.environ.get("TOOL_LOG"):
        with open(os.environ["TOOL_LOG"], "a") as f:
            f.write(host + "\n")
    return "%s has 7 GB left" % host


TOOLS = {"disk_space": disk_space}
SCHEMAS = [{"type": "function", "function": {
    "name": "disk_space", "description": "Says how much disk space a host has.",
    "parameters": {"type": "object", "properties": {"host": {"type": "string"}}, "required": ["host"]}}}]


def ask(messages: list) -> dict:
    """Asks the model, and returns its message. What is wrong with the request is not tried again."""
    body = json.dumps({"model": MODEL, "messages": messages, "tools": SCHEMAS}).encode()
    request = urllib.request.Request(URL + "/chat/completions", body, {
        "Content-Type": "application/json", "Authorization": "Bearer " + KEY})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["message"]
    except urllib.error.HTTPError as e:
        text = e.read(2000).decode(errors="replace")
        raise perdure.Failure("model_error", text, permanent=e.code not in (408, 409, 429) and e.code < 500) from e


def call(name: str, arguments: str) -> str:
    """Calls a tool. A mistake of the model is a text that the model reads, and no error of the agent."""
    try:
        return TOOLS[name](**json.loads(arguments or "{}"))
    except KeyError:
        return "there is no tool %s" % name
    except (TypeError, ValueError) as e:
        return "the arguments of %s can't be read: %s" % (name, e)


@worker.agent("assistant", timeout=3600)
async def assistant(ctx: perdure.Context, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        answer = await ctx.step("model", lambda: ask(messages), about=messages, timeout=180,
                                retries=perdure.Retry(attempts=5, first=1.0))
        messages.append(answer)
        calls = answer.get("tool_calls") or []
        if not calls:
            return answer.get("content") or ""
        for wanted in calls:
            tool = wanted["function"]
            result = await ctx.step("tool", lambda: call(tool["name"], tool["arguments"]), about=tool)
            messages.append({"role": "tool", "tool_call_id": wanted["id"], "content": result})
    raise perdure.Failure("too_many_turns", "the model has asked for tools %d times" % MAX_TURNS, permanent=True)


if __name__ == "__main__":
    worker.run()
