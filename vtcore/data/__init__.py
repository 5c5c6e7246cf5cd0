"""Text files that belong to the package: training text for small tokenizers and a chat template.

Does not: hold code.
"""
