-- user_state: locks, unlocks and removes users of the REST server.
-- KEYS user index, role binding of the user, login lock of the user; ARGV operation, user,
-- marker of a lock set by hand, failed logins allowed, lock time in milliseconds.

local users, roles, lock = KEYS[1], KEYS[2], KEYS[3]
local operation, user, marker = ARGV[1], ARGV[2], ARGV[3]

-- Replies 1, or 0 when there is no such user. A lock set by hand never expires.
if operation == 'lock' then
    if redis.call('HEXISTS', users, user) == 0 then
        return 0
    end
    redis.call('SET', lock, marker)
    return 1
end

-- Replies the number of users removed; what belongs to the user goes in any case.
if operation == 'remove' then
    local removed = redis.call('HDEL', users, user)
    redis.call('DEL', roles, lock)
    return removed
end

-- Replies the number of attempts so far, -1 when locked by hand. Attempts beyond the
-- limit do not extend the lock.
if operation == 'login-attempt' then
    if redis.call('GET', lock) == marker then
        return -1
    end
    local attempts = redis.call('INCR', lock)
    if attempts <= tonumber(ARGV[4]) then
        redis.call('PEXPIRE', lock, ARGV[5])
    end
    return attempts
end

-- Replies the number of counters cleared, -1 when locked by hand.
if operation == 'login-success' then
    if redis.call('GET', lock) == marker then
        return -1
    end
    return redis.call('DEL', lock)
end

return redis.error_reply('Unsupported user state operation: ' .. operation)
