package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/cmd/internal/child"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/server/tlscert"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/tlstest"
	"github.com/perdure/perdure/worker"
)

// secureServer starts "perdure serve" as a process. It returns its URL, and a function that kills
// it.
func secureServer(t *testing.T, listen, data, cert, key string) (url string, kill func()) {
	t.Helper()
	p, err := child.Start(t.Context(), "server", nil, "serve", "--listen", listen, "--data", data, "--tls-cert",
		cert, "--tls-key", key, "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	kill = func() {
		p.Cmd.Process.Kill()
		p.Cmd.Wait()
	}
	t.Cleanup(kill)
	if !p.Out.Scan() {
		t.Fatalf("the server printed no URL: %s", p.Errors.String())
	}
	return p.Out.Text(), kill
}

// serial returns the serial number of a server's certificate.
func serial(t *testing.T, address string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestServeWithTLS(t *testing.T) {
	ca, dir := tlstest.New(t), t.TempDir()
	cert, key, data := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "data")
	ca.Issue(cert, key, time.Now().Add(60*24*time.Hour))
	url, kill := secureServer(t, "127.0.0.1:0", data, cert, key)
	address := strings.TrimPrefix(url, "https://")
	if address == url {
		t.Fatalf("the server is at %s, want https://…", url)
	}
	t.Setenv("PERDURE_URL", url)
	t.Setenv("PERDURE_DATA", data)
	t.Setenv("PERDURE_KEY", "")

	// Without --ca the authority is not trusted.
	out, _ := mustRun(t, 1, "doctor")
	has(t, out, "ok   TLS", "on: the certificate expires at", "BAD  server", "--ca FILE or PERDURE_CA")
	out, _ = mustRun(t, 0, "doctor", "--ca", ca.File)
	has(t, out, "ok   TLS", "ok   server", "ok   key")
	t.Setenv("PERDURE_CA", ca.File)
	mustRun(t, 0, "jobs")

	// A worker and a stream continue after the server was killed and started again.
	admin, err := os.ReadFile(filepath.Join(data, embedded.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := client.LoadCA(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(url, strings.TrimSpace(string(admin)), client.Options{RootCAs: pool})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	begun, goOn := make(chan struct{}, 8), make(chan struct{})
	w := worker.New(c, worker.Options{})
	worker.Handle(w, "job", func(ctx context.Context, in string) (string, error) {
		begun <- struct{}{}
		<-goOn
		return in + "!", nil
	})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r, err := c.Start(ctx, perdure.Submission{Kind: "job", Input: client.JSON("x")})
	if err != nil {
		t.Fatal(err)
	}
	last := make(chan string, 1)
	go func() {
		for ev, err := range c.Stream(ctx, r.RunID, 0) {
			if err != nil {
				last <- err.Error()
				return
			}
			if ev.Type == "run:completed" {
				last <- string(ev.Type)
			}
		}
	}()
	<-begun
	kill()
	secureServer(t, address, data, cert, key)
	close(goOn)
	if got := <-last; got != "run:completed" {
		t.Errorf("run %s: the stream over TLS ended with %q after the server was killed, want run:completed",
			r.RunID, got)
	}

	// New certificate files are used without a restart, and the metric follows.
	expires := time.Now().Add(90 * 24 * time.Hour).Truncate(time.Second)
	fresh := ca.Issue(cert, key, expires)
	eventually.True(t, "the new certificate is shown", func() bool { return serial(t, address) == fresh })
	out, _ = mustRun(t, 0, "doctor")
	has(t, out, expires.UTC().Format(time.RFC3339))
	stop()
	<-ended
}

func TestListeningBeyondThisMachineNeedsTLS(t *testing.T) {
	ca, dir := tlstest.New(t), t.TempDir()
	cert, key, other := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "other.pem")
	ca.Issue(cert, key, time.Now().Add(time.Hour))
	ca.Issue(other, other+".key", time.Now().Add(time.Hour))
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, 1,
			"--tls-cert FILE --tls-key FILE); or set insecure (--insecure) if only a proxy with TLS"},
		{[]string{"--listen", ":7373"}, 1, "reachable from other machines"},
		{[]string{"--listen", "0.0.0.0:0", "--insecure"}, 0, "good"},
		{[]string{"--listen", "0.0.0.0:0", "--tls-cert", cert, "--tls-key", key}, 0, "good"},
		{[]string{"--tls-cert", cert}, 1, "tls_key"},
		{[]string{"--tls-key", key}, 1, "tls_cert"},
		{[]string{"--tls-cert", cert, "--tls-key", other + ".key"}, 1, "no certificate with its private key"},
		{[]string{"--tls-cert", cert + "x", "--tls-key", key}, 1, "no such file"},
	} {
		code, stdout, stderr := call(append([]string{"config", "check"}, x.args...)...)
		if code != x.code || !strings.Contains(stdout+stderr, x.want) {
			t.Errorf("config check %v: exit code %d, want %d with %q:\n%s%s", x.args, code, x.code, x.want, stdout,
				stderr)
		}
		if x.code != 0 { // serve refuses it in the same way
			code, _, stderr := call(append([]string{"serve", "--data", filepath.Join(dir, "data")}, x.args...)...)
			if code != x.code || !strings.Contains(stderr, x.want) {
				t.Errorf("serve %v: exit code %d, want %d with %q:\n%s", x.args, code, x.code, x.want, stderr)
			}
		}
	}
	t.Setenv("PERDURE_LISTEN", "0.0.0.0:0")
	t.Setenv("PERDURE_INSECURE", "true")
	mustRun(t, 0, "config", "check")
	t.Setenv("PERDURE_INSECURE", "perhaps")
	_, stderr := mustRun(t, 1, "config", "check")
	has(t, stderr, "insecure", "perhaps")
}

// A client that opens a connection and sends nothing is disconnected after a timeout.
func TestSilentTLSClientIsDisconnected(t *testing.T) {
	ca, dir := tlstest.New(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue(cert, key, time.Now().Add(time.Hour))
	pair, err := tlscert.Load(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hs := server(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if hs.ReadHeaderTimeout <= 0 || hs.ReadHeaderTimeout > 10*time.Second {
		t.Errorf("ReadHeaderTimeout, which limits the handshake, = %s, want more than 0 and at most 10 s",
			hs.ReadHeaderTimeout)
	}
	hs.TLSConfig, hs.ReadHeaderTimeout = pair.Config(), 50*time.Millisecond
	go hs.ServeTLS(l, "", "")
	defer hs.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(eventually.Within))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
		t.Errorf("a silent client reads %d bytes, %v; want a connection that was closed", n, err)
	}
}
