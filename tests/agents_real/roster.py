"""The programs: whose interpreter, which dialect, and what is particular about each."""

from __future__ import annotations

from dataclasses import dataclass, field

from players import BY_CODE, BY_REPAIR, BY_TEXT, BY_TOOL, BY_TWO, BY_TYPE, Player


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


LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
AGENTS = {
    "openai_loop": Agent(interpreter="clients"),
    "anthropic_loop": Agent(interpreter="clients"),
    "responses_stream": Agent(interpreter="clients"),
    "openai_agents_chat": Agent(interpreter="openai_agents", player=BY_TWO, calls=4, conversations=2),
    "openai_agents_stream": Agent(interpreter="openai_agents"),
    "openai_agents_mcp": Agent(interpreter="openai_agents"),
    "pydantic_ai_loop": Agent(interpreter="pydantic_ai", player=BY_TYPE),
    "langgraph_loop": Agent(interpreter="langgraph"),
    "smolagents_tools": Agent(interpreter="smolagents", player=BY_TOOL, conversations=3),
    "smolagents_code": Agent(interpreter="smolagents", player=BY_CODE),
    "mini_swe": Agent(interpreter="mini_swe_agent", player=BY_REPAIR, calls=4, environment=LITELLM),
}
