"""Running Python code: `execute_code`."""
