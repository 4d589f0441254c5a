package proxy

import "testing"

// TestForecast: the client reads what the very version behind the proxy would have told it.
func TestForecast(t *testing.T) {
	bulk := func(text string) string { return string(appendString(nil, text)) }
	for _, c := range []struct {
		reply, refusal string
		unknown        bool
	}{
		{"+OK\r\n", "", false},
		{"-ERR User 'x' not found\r\n", "", true},
		{"-NOPERM this user has no permissions to run the 'acl|dryrun' command\r\n", "", true},
		// 7.0
		{bulk("This user has no permissions to run the 'get' command"), "NOPERM this user has no permissions to run the 'get' command", false},
		{bulk("This user has no permissions to access the 'k' key"), "NOPERM this user has no permissions to access one of the keys used as arguments", false},
		{bulk("This user has no permissions to access the 'k' channel"), "NOPERM this user has no permissions to access one of the channels used as arguments", false},
		// 7.2 and later
		{bulk("User app has no permissions to run the 'get' command"), "NOPERM User app has no permissions to run the 'get' command", false},
		{bulk("User app has no permissions to access the 'k' key"), "NOPERM No permissions to access a key", false},
		{bulk("User app has no permissions to access the 'k' channel"), "NOPERM No permissions to access a channel", false},
		{bulk("User app has no permissions to access the 'permissions to run 'x' command' key"), "NOPERM No permissions to access a key", false},
	} {
		if refusal, unknown := forecast([]byte(c.reply)); refusal != c.refusal || unknown != c.unknown {
			t.Errorf("%q: got %q, %v", c.reply, refusal, unknown)
		}
	}
}
