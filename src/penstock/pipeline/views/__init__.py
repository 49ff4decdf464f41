"""Runs views: micro-batches of a stream become committed records, exactly once.

    stream_runner   one streaming query for all views of a stream
    view_runner     one view: masks, the stateful operator, masks, commit
    single_pass     row-wise views of a stream, written in one pass over a batch
    operator        the stateful operator of a view, a streaming query of its own

`blueprint` is what all of them are made of: the definitions, compiled in each process.
"""
