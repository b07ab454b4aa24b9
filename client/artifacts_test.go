package client_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestArtifactIsReturnedUnchanged(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		c := w.Client()
		ctx := within(t)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		g := ok[*api.Polled](t)(session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
		lease := api.Lease{RunID: g.RunID, Epoch: g.Epoch}
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		for _, body := range []io.Reader{bytes.NewReader(data), io.MultiReader(bytes.NewReader(data))} {
			a := ok[*perdure.Artifact](t)(session.Of(c).PutArtifact(ctx, lease, "data.bin", "", body))
			if a.Size != int64(len(data)) || a.ContentType != perdure.AnyContent {
				t.Errorf("artifact: %+v, want %d bytes of %s", a, len(data), perdure.AnyContent)
			}
		}
		// A seekable body is sent from its current position.
		tail := bytes.NewReader(data)
		if _, err := tail.Seek(-16, io.SeekEnd); err != nil {
			t.Fatal(err)
		}
		if a := ok[*perdure.Artifact](t)(session.Of(c).PutArtifact(ctx, lease, "tail", "text/plain",
			tail)); a.Size != 16 {
			t.Errorf("tail: %+v, want 16 bytes", a)
		}
		if a := ok[*perdure.Artifact](t)(session.Of(c).PutArtifact(ctx, lease, "empty", "",
			strings.NewReader(""))); a.Size != 0 {
			t.Errorf("empty artifact: %+v, want 0 bytes", a)
		}
		from, a, err := c.Artifact(ctx, run.RunID, "data.bin")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(from)
		if err != nil || !bytes.Equal(got, data) || a.Size != int64(len(data)) || a.Name != "data.bin" {
			t.Errorf("read %d bytes of %+v, %v, want the %d bytes that were sent", len(got), a, err, len(data))
		}
		from.Close()
		if _, _, err := c.Artifact(ctx, run.RunID, "other"); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("an unknown artifact: %v, want %s", err, perdure.CodeNotFound)
		}
		lease.Epoch++
		if _, err := session.Of(c).PutArtifact(ctx, lease, "x", "",
			bytes.NewReader(data)); client.CodeOf(err) != perdure.CodeStaleEpoch {
			t.Errorf("an upload with a wrong epoch: %v, want %s", err, perdure.CodeStaleEpoch)
		}
	})
}

func TestDamagedOrTruncatedArtifactIsAnError(t *testing.T) {
	answer := func(body, etag string) http.RoundTripper {
		return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"` + etag + `"`}}, Request: r,
				Body: io.NopCloser(strings.NewReader(body))}, nil
		})
	}
	const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	for body, whole := range map[string]bool{"hello": true, "hell": false, "hellO": false, "": false} {
		c := client.New("http://localhost", "k", client.Options{Transport: answer(body, hello)})
		from, _, err := c.Artifact(within(t), "r", "n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(from); (err == nil) != whole {
			t.Errorf("body %q: %v, want success: %v", body, err, whole)
		}
	}
}

func TestArtifactWithoutBodyIsError(t *testing.T) {
	c := client.New("http://perdure", "k",
		client.Options{Transport: servertest.Tripper(func(*http.Request) (*http.Response, error) {
			t.Error("the request was sent, want it refused before")
			return nil, errors.New("unplugged")
		})})
	_, err := session.Of(c).PutArtifact(t.Context(), api.Lease{RunID: "r", Epoch: 1}, "a.txt", "", nil)
	if client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("PutArtifact without a body: %v, want %s", err, perdure.CodeInvalid)
	}
}
