"""What the tests stand on and none of them is: brokers, processes, lanes, and what this machine lacks.

Imports go downwards: support < kafka < apache_kafka < tiers; worker_process < applications.
"""
