"""The OpenAI Responses API: a chat in items instead of messages. State across turns is the client's."""
