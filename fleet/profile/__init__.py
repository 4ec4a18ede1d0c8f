"""What users configure: node profiles, behaviours of pods, settings of a run.

Here: schemas, errors that name file and path, and the compiled forms. Only `loader` reads files.
Not here: what becomes of it.
"""
