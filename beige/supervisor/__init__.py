"""Runs the processes: generates supervisord's configuration, starts, stops and watches them.

Kept free of imports: the launcher of every process goes through this package.
"""
