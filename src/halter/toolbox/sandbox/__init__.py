"""What the processes that a model starts may read, write and reach."""
