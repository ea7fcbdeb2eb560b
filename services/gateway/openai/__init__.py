"""OpenAI's wire format over the same governed path: an agent is a model, a conversation a session."""
