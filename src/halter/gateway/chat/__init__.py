"""Chat platforms: sessions for people who write, speak and press buttons in a chat."""
