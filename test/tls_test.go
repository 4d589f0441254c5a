package test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cosky-proxy/cluster/clustertest"
)

// TestTLS runs the program with TLS on both sides and redis-cli as its client. A certificate that is
// renewed is shown to the next client, without a restart.
func TestTLS(t *testing.T) {
	ca := clustertest.NewCA(t)
	redis := clustertest.StartTLSRedis(t, ca)
	cert, key := ca.Issue("127.0.0.1", "localhost")
	own, ownKey := ca.Issue("the proxy")
	tlsPort := fmt.Sprint(clustertest.FreePort(t))
	binary.Start(t, "--listen", "tls:127.0.0.1:"+tlsPort, "--tls.cert", cert, "--tls.key", key, "--tls.client-auth", "required", "--tls.ca", ca.CertFile,
		"--backend", "rediss://"+redis.TLSAddr(), "--upstream.tls.ca", ca.CertFile, "--upstream.tls.cert", own, "--upstream.tls.key", ownKey)

	mine, mineKey := ca.Issue("me")
	cli := func(args ...string) string {
		return output(t, exec.Command("redis-cli", append([]string{"--tls", "--cacert", ca.CertFile, "--cert", mine, "--key", mineKey, "-p", tlsPort}, args...)...))
	}
	if got := cli("SET", "k", "v"); got != "OK\n" {
		t.Errorf("SET: %q", got)
	}
	if got := redis.Text("GET", "k"); got != "v" {
		t.Errorf("the backend has %q", got)
	}
	if got := cli("-3", "GET", "k"); got != "v\n" {
		t.Errorf("GET: %q", got)
	}
	if out, err := exec.Command("redis-cli", "--tls", "--cacert", ca.CertFile, "-p", tlsPort, "GET", "k").CombinedOutput(); err == nil && strings.Contains(string(out), "v\n") {
		t.Errorf("a client without a certificate gets %q", out)
	}

	shown := func() string {
		nc, err := tls.Dial("tcp", "127.0.0.1:"+tlsPort, ca.Client())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		return nc.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := shown()
	newer, newerKey := ca.Issue("127.0.0.1", "localhost")
	for from, to := range map[string]string{newer: cert, newerKey: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	clustertest.Await(t, "the new certificate", func() error {
		if shown() == before {
			return errors.New("still the old one")
		}
		return nil
	})
}
