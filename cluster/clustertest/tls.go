package clustertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CA is a certificate authority of one test.
type CA struct {
	CertFile string // PEM
	Pool     *x509.CertPool

	t      TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	issued int64
}

// NewCA makes an authority whose files live as long as the test.
func NewCA(t TB) *CA {
	t.Helper()
	ca := &CA{t: t, dir: t.TempDir(), key: newKey(t)}
	ca.CertFile = filepath.Join(ca.dir, "ca.pem")
	template := ca.template("the test's authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	if err == nil {
		ca.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatalf("cannot make an authority: %v", err)
	}
	ca.Pool = x509.NewCertPool()
	ca.Pool.AddCert(ca.cert)
	ca.write(ca.CertFile, "CERTIFICATE", der)
	return ca
}

func newKey(t TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("cannot make a key: %v", err)
	}
	return key
}

func (ca *CA) template(name string) *x509.Certificate {
	ca.issued++
	return &x509.Certificate{
		SerialNumber: big.NewInt(ca.issued), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

// Issue signs a certificate for hosts (names or IP addresses; the first one is its name too), good for
// servers and clients.
func (ca *CA) Issue(hosts ...string) (certFile, keyFile string) {
	ca.t.Helper()
	template := ca.template(hosts[0])
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	key := newKey(ca.t)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		ca.t.Fatalf("cannot sign a certificate: %v", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatalf("cannot write a key: %v", err)
	}
	base := filepath.Join(ca.dir, fmt.Sprintf("%d", ca.issued))
	ca.write(base+".pem", "CERTIFICATE", der)
	ca.write(base+".key", "PRIVATE KEY", secret)
	return base + ".pem", base + ".key"
}

func (ca *CA) write(file, kind string, der []byte) {
	ca.t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		ca.t.Fatalf("cannot write %s: %v", file, err)
	}
}

// Client trusts the authority and shows a certificate.
func (ca *CA) Client() *tls.Config {
	ca.t.Helper()
	return &tls.Config{RootCAs: ca.Pool, Certificates: []tls.Certificate{ca.pair("a client")}}
}

// Server shows a certificate for this machine.
func (ca *CA) Server() *tls.Config {
	ca.t.Helper()
	return &tls.Config{Certificates: []tls.Certificate{ca.pair(localHosts...)}, ClientCAs: ca.Pool}
}

func (ca *CA) pair(hosts ...string) tls.Certificate {
	ca.t.Helper()
	pair, err := tls.LoadX509KeyPair(ca.Issue(hosts...))
	if err != nil {
		ca.t.Fatalf("cannot load a certificate: %v", err)
	}
	return pair
}

var localHosts = []string{"localhost", "127.0.0.1", "::1"}

// serverArgs let a redis-server or Sentinel speak TLS on a port of its own, besides the plain one.
func (ca *CA) serverArgs() []string {
	ca.t.Helper()
	cert, key := ca.Issue(localHosts...)
	return []string{
		"--tls-port", strconv.Itoa(FreePort(ca.t)), "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", ca.CertFile, "--tls-replication", "yes",
	}
}

// StartTLSRedis is StartRedis for a server that speaks TLS at TLSAddr and wants to see a certificate there,
// unless args say "--tls-auth-clients no". It is plain at Addr.
func StartTLSRedis(t TB, ca *CA, args ...string) *Redis {
	t.Helper()
	return StartRedis(t, append(ca.serverArgs(), args...)...)
}

// StartTLSSentinel starts a master without replicas and one Sentinel that watches it; everything is under TLS.
func StartTLSSentinel(t TB, ca *CA) (master, sentinel *Redis) {
	t.Helper()
	master = StartTLSRedis(t, ca)
	sentinel = launchIn(t, t.TempDir(), func(dir string, port int) []string {
		lines := fmt.Sprintf("port %d\nbind 127.0.0.1\nprotected-mode no\ndir %s\nlogfile %s\nsentinel monitor mymaster 127.0.0.1 %s 1\n",
			port, dir, filepath.Join(dir, "redis.log"), master.arg("--tls-port"))
		conf := filepath.Join(dir, "sentinel.conf")
		if err := os.WriteFile(conf, []byte(lines), 0o600); err != nil {
			t.Fatalf("cannot write the sentinel's configuration: %v", err)
		}
		return append([]string{conf, "--sentinel"}, ca.serverArgs()...)
	})
	sentinel.awaitReady()
	Await(t, "the sentinel to see the master", func() error {
		state := sentinel.Do("SENTINEL", "CKQUORUM", "mymaster")
		if !strings.HasPrefix(fmt.Sprint(state), "OK") {
			return fmt.Errorf("it says %v", state)
		}
		return nil
	})
	return master, sentinel
}

// TLSAddr is where the server speaks TLS, "" if it does not.
func (r *Redis) TLSAddr() string {
	if port := r.arg("--tls-port"); port != "" {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return ""
}
