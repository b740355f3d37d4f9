"""Making room in the model's context. The log keeps everything."""
