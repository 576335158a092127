"""The programs: whose interpreter, which dialect, and what is particular about each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from players import BY_CODE, BY_REPAIR, BY_TEXT, BY_TOOL, BY_TURNS, BY_TWO, BY_TYPE, Player


@dataclass(frozen=True, kw_only=True)
class Agent:
    interpreter: str
    """Of build/agents, made from the requirements of that name."""
    player: Player = BY_TEXT
    calls: int = 3
    """Of the model, where it is played well."""
    conversations: int = 1
    """Samples of such an episode: more than one where the program rewrites what was said."""
    environment: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    """Modules that the interpreter imports once."""
    isolated: bool = False
    """Whether it is shut in."""


LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
BUILD = Path(os.environ.get("AGENTS_PYTHONS") or Path(__file__).resolve().parents[2] / "build" / "agents").absolute()
UV = {
    **{name: value for name, value in os.environ.items() if name.startswith("UV_")},
    "UV_CACHE_DIR": str(BUILD / "uv-cache"),
    "PATH": os.pathsep.join([str(BUILD / "verifiers" / "bin"), os.environ.get("PATH", "")]),
}
"""A harness of verifiers is a program of its own, which uv starts, in an environment that it makes once."""
AGENTS = {
    "openai_loop": Agent(interpreter="clients"),
    "anthropic_loop": Agent(interpreter="clients"),
    "responses_stream": Agent(interpreter="clients", preload=("openai.resources.responses",)),
    "openai_agents_chat": Agent(interpreter="openai_agents", player=BY_TWO, calls=4, conversations=2),
    "openai_agents_stream": Agent(interpreter="openai_agents"),
    "openai_agents_mcp": Agent(interpreter="openai_agents"),
    "pydantic_ai_loop": Agent(interpreter="pydantic_ai", player=BY_TYPE),
    "langgraph_loop": Agent(interpreter="langgraph"),
    "smolagents_tools": Agent(interpreter="smolagents", player=BY_TOOL, conversations=3),
    "smolagents_code": Agent(interpreter="smolagents", player=BY_CODE, isolated=True),
    "verifiers_turns": Agent(interpreter="verifiers", player=BY_TURNS, environment=UV),
    "mini_swe": Agent(interpreter="mini_swe_agent", player=BY_REPAIR, calls=4, environment=LITELLM, isolated=True),
}
