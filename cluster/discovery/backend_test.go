package discovery

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cosky-proxy/cluster"
)

func TestBackendNeverPrintsPasswords(t *testing.T) {
	b := Backend{Mode: cluster.Sentinel, Seeds: []string{"h:1"}, MasterName: "m", User: "u", Password: "secret", SentinelUser: "v", SentinelPassword: "secret"}
	js, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(b), fmt.Sprintf("%+v", b), fmt.Sprintf("%#v", b), fmt.Sprint(&b), string(js)} {
		if strings.Contains(s, "secret") {
			t.Errorf("the backend prints as %s", s)
		}
	}
}
