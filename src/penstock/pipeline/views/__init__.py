"""Runs views: micro-batches of a stream become committed records, exactly once.

    stream_runner    the queries of a stream's views
    query            `readStream` and `writeStream` of row-wise views, one query for all of them
    stateful_query   a view that holds records back, a query of its own
    real_time        a view that publishes each record as it comes, from Kafka to Kafka
    view_runner      one view: masks, commit
    single_pass      row-wise views of a stream, written in one pass over a batch

`blueprint` is what all of them are made of: the definitions, compiled in each process.
"""
