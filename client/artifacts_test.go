package client_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

func TestAnArtifactComesBackAsItWasSent(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		c := w.client()
		ctx := within(t)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		g := ok[*api.Polled](t)(c.Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
		lease := api.Lease{RunID: g.RunID, Epoch: g.Epoch}
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		for _, body := range []io.Reader{bytes.NewReader(data), io.MultiReader(bytes.NewReader(data))} {
			a := ok[*perdure.Artifact](t)(c.PutArtifact(ctx, lease, "data.bin", "", body))
			if a.Size != int64(len(data)) || a.ContentType != perdure.AnyContent {
				t.Errorf("%+v", a)
			}
		}
		// What was read before stays read.
		tail := bytes.NewReader(data)
		if _, err := tail.Seek(-16, io.SeekEnd); err != nil {
			t.Fatal(err)
		}
		if a := ok[*perdure.Artifact](t)(c.PutArtifact(ctx, lease, "tail", "text/plain", tail)); a.Size != 16 {
			t.Errorf("%+v", a)
		}
		if a := ok[*perdure.Artifact](t)(c.PutArtifact(ctx, lease, "empty", "", strings.NewReader(""))); a.Size != 0 {
			t.Errorf("%+v", a)
		}
		from, a, err := c.Artifact(ctx, run.RunID, "data.bin")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(from)
		if err != nil || !bytes.Equal(got, data) || a.Size != int64(len(data)) || a.Name != "data.bin" {
			t.Errorf("%d bytes, %v, %+v", len(got), err, a)
		}
		from.Close()
		if _, _, err := c.Artifact(ctx, run.RunID, "other"); client.CodeOf(err) != perdure.CodeNotFound {
			t.Error(err)
		}
		lease.Epoch++
		if _, err := c.PutArtifact(ctx, lease, "x", "", bytes.NewReader(data)); client.CodeOf(err) != perdure.CodeStaleEpoch {
			t.Error(err)
		}

	})
}

// What was damaged or cut off on the way is no artifact.
func TestADamagedArtifactIsAnError(t *testing.T) {
	answer := func(body, etag string) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"` + etag + `"`}}, Request: r, Body: io.NopCloser(strings.NewReader(body))}, nil
		})
	}
	const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	for body, whole := range map[string]bool{"hello": true, "hell": false, "hellO": false, "": false} {
		from, _, err := client.New("http://localhost", "k", client.Options{Transport: answer(body, hello)}).Artifact(within(t), "r", "n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(from); (err == nil) != whole {
			t.Errorf("%q: %v", body, err)
		}
	}
}
