-- service_topology_get: who uses whom.
-- KEYS[1] namespace. Replies consumer, {producers}, consumer, {producers}, ...

local namespace = KEYS[1]

local topology = {}
for _, consumer in ipairs(redis.call('HKEYS', namespace .. ':topology_idx')) do
    topology[#topology + 1] = consumer
    topology[#topology + 1] = redis.call('HKEYS', namespace .. ':topology:' .. consumer)
end
return topology
