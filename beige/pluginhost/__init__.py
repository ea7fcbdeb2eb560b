"""Runs a plugin in a process of its own, for the services that have plugins (tools, channels).

`child` is the host's end of one process, `life` keeps one running, `worker` is the plugin's end, `loader`
imports it there. What host and plugin say to each other is each service's own: `frames` has the base.
"""
