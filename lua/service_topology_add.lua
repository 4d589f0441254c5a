-- service_topology_add: notes that a consumer uses a producer, and since when.
-- KEYS[1] namespace of the consumer; ARGV consumer, producer. Replies nil.

local namespace, consumer, producer = KEYS[1], ARGV[1], ARGV[2]
local producers = namespace .. ':topology:' .. consumer
local now = redis.call('TIME')[1]

redis.call('HSETNX', namespace .. ':topology_idx', consumer, now)
redis.call('HSETNX', producers, producer, now)
return nil
