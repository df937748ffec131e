"""What both sides agree on: settings, messages, agreement, codec, random streams, columns."""
