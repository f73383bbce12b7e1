"""The league of optimisers: problems, optimisers by name, cells, and what their records come to."""
