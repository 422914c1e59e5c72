"""Scripted servers: each file is a program of its own, run as a real process; its docstring says how."""
