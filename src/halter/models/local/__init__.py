"""The embedded model: a GGUF file served by llama.cpp in a child process."""
