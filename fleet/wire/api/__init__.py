"""The API: requests as byte templates, answers and watch events as records, list-watches.

Here: JSON and protobuf at the border. Not here: connections, and who takes what came.
"""
