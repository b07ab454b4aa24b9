package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// After a kill in the middle of an upload the artifact does not exist, and the same upload
// succeeds.
func TestKillDuringUploadLeavesNoArtifact(t *testing.T) {
	n := newNode(t)
	n.submit(obj{"kind": "job"})
	g := n.poll("w", 1, true, "5s")[0]
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	path := fmt.Sprintf("/api/v1/runs/%s/artifacts/x", g.RunID)
	list := func() (out struct {
		Artifacts []struct {
			Size int
		}
	}) {
		n.insist("GET", fmt.Sprintf("/api/v1/runs/%s/artifacts", g.RunID), "", nil, &out)
		return out
	}
	for i := range 3 {
		conn, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		sent := len(data) * (i + 1) / 4
		fmt.Fprintf(conn,
			"PUT %s?epoch=%d HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
			path, g.Epoch, n.key, len(data))
		if _, err := conn.Write(data[:sent]); err != nil {
			t.Fatal(err)
		}
		n.kill(syscall.SIGKILL)
		conn.Close()
		n.start()
		if out := list(); len(out.Artifacts) != 0 {
			t.Fatalf("artifacts after the kill = %+v, want none", out)
		}
	}
	eventually.True(t, "the whole of it is taken", func() bool {
		req, err := http.NewRequest("PUT", fmt.Sprintf("http://%s%s?epoch=%d", n.addr, path, g.Epoch),
			bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+n.key)
		res, err := n.http.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode == 201
	})
	n.kill(syscall.SIGKILL)
	n.start()
	if out := list(); len(out.Artifacts) != 1 || out.Artifacts[0].Size != len(data) {
		t.Fatalf("artifacts after the acknowledged upload = %+v, want it", out)
	}
}
