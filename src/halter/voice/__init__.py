"""Speech: what was said, as text, and text, said."""
