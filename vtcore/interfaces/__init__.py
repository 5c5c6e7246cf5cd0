"""The contracts between the core and its plugins, one file per extension point, free of torch.

Does not: hold an implementation.
"""
