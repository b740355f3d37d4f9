"""Shell commands: `terminal`, `process`, and the processes behind them."""
