package httpd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// upload makes a route of a handler that reads its body itself, in chunks: bytes of any kind.
func upload[Out any](pattern string, g guard, summary string, f func(*call) (int, *Out, error)) route {
	return route{method: "PUT", pattern: pattern, guard: g, summary: summary,
		in: reflect.TypeFor[none](), out: reflect.TypeFor[Out](), bytes: true,
		handle: func(c *call) (int, any, error) {
			status, out, err := f(c)
			if err != nil {
				c.w.Header().Set("Connection", "close") // the rest of the body is not read
			}
			return status, out, err
		}}
}

// download makes a route of a handler that writes bytes of any kind.
func download(pattern string, g guard, summary string, f func(*call) error) route {
	return route{method: "GET", pattern: pattern, guard: g, summary: summary, media: perdure.AnyContent, raw: f,
		in: reflect.TypeFor[none](), out: reflect.TypeFor[none]()}
}

func putArtifact(c *call) (int, *perdure.Artifact, error) {
	epoch, err := c.intParam("epoch", 0, 1, maxSeq)
	if err != nil {
		return 0, nil, err
	}
	if epoch == 0 {
		return 0, nil, perdure.Invalid("epoch", "is missing")
	}
	want := c.URL.Query().Get("sha256")
	if want != "" {
		if err := perdure.CheckSHA256(want); err != nil {
			return 0, nil, err
		}
	}
	t, err := c.tenantOf(c.run())
	if err != nil {
		return 0, nil, err
	}
	if err := c.watchKey(); err != nil {
		return 0, nil, err
	}
	if err := checkByteQuota(c); err != nil {
		return 0, nil, err
	}
	begin := &life.BeginArtifact{Tenant: t, RunID: c.run(), Epoch: epoch, Name: c.PathValue("name"),
		ContentType: c.Header.Get("Content-Type"), Size: max(c.ContentLength, 0)}
	if err := c.s.engine.Do(c.Context(), begin); err != nil {
		return 0, nil, err
	}
	put := &life.PutArtifact{Tenant: t, RunID: begin.RunID, Epoch: epoch, Name: begin.Name,
		ContentType: begin.ContentType, Upload: begin.Upload}
	if err = receive(c, put, want); err == nil {
		err = c.checkKey()
	}
	if err == nil {
		err = c.s.engine.Do(c.Context(), put)
	}
	if err != nil {
		// Remove the chunks of the failed upload now. If that fails, the watchdog removes them in
		// an hour.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), time.Second)
		defer cancel()
		_ = c.s.engine.Do(ctx, &life.EndUpload{Tenant: t, Upload: begin.Upload})
		return 0, nil, err
	}
	return createdStatus(put.Created), &put.Artifact, nil
}

// receive stores a body chunk by chunk. Each chunk has BodyTimeout to arrive. The hash that is
// compared is of the bytes that were sent; the stored one is of the bytes without secrets.
func receive(c *call, put *life.PutArtifact, want string) error {
	rc := http.NewResponseController(c.w)
	limit := c.s.engine.Policy().ArtifactMaxBytes
	sent, kept := sha256.New(), sha256.New()
	body := c.s.opt.Secrets.Reader(io.TeeReader(http.MaxBytesReader(c.w, c.Body, limit), sent))
	chunk := make([]byte, life.ChunkSize)
	for n, ended := int64(0), false; !ended; n++ {
		_ = rc.SetReadDeadline(time.Now().Add(c.s.opt.BodyTimeout)) // a call in process has none
		have, err := fill(body, chunk)
		var big *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			ended = true
		case errors.As(err, &big):
			return perdure.Errorf(perdure.CodeTooLarge, "an artifact has at most %d bytes", limit)
		case err != nil:
			return bodyError(c, err)
		}
		if have == 0 {
			break
		}
		countBytes(c, have)
		kept.Write(chunk[:have])
		put.Size += int64(have)
		add := &life.AddChunk{Tenant: put.Tenant, Upload: put.Upload, N: n, Data: chunk[:have]}
		if err := c.s.storeChunk(c.Context(), add); err != nil {
			return err
		}
	}
	_ = rc.SetReadDeadline(time.Time{})
	if got := fmt.Sprintf("%x", sent.Sum(nil)); want != "" && got != want {
		return perdure.Invalid("sha256", "what came has the hash %s", got)
	}
	put.SHA256 = fmt.Sprintf("%x", kept.Sum(nil))
	return nil
}

// fill reads until a buffer is full. The error is io.EOF only for a complete body. io.ReadFull
// would turn a short last chunk into the error of a body that breaks off.
func fill(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = r.Read(b[n:])
		n += k
	}
	return n, err
}

// storeChunk writes a chunk, when its tenant's turn has come. While other tenants call, a tenant's
// uploads rest after each chunk, as long as the chunk took: the others wait for its transaction.
func (s *Server) storeChunk(ctx context.Context, op *life.AddChunk) error {
	leave, err := s.shares.chunks.Enter(ctx, op.Tenant, 1)
	if err != nil {
		return err
	}
	begin := time.Now()
	defer func() {
		if s.shares.alone(op.Tenant, time.Now()) {
			leave()
		} else {
			time.AfterFunc(min(maxTurnRest, time.Since(begin)), leave)
		}
	}()
	return s.engine.Do(ctx, op)
}

func listArtifacts(c *call, _ *none) (int, *api.Artifacts, error) {
	list, err := c.s.engine.Runs.Artifacts(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	return 0, &api.Artifacts{Artifacts: append([]perdure.Artifact{}, list...)}, nil
}

// inertUses are the uses, as browsers name them in Sec-Fetch-Dest, in which bytes are not executed:
// saving, reading by a script, and pictures and sounds. Clients that are no browsers name none.
var inertUses = []string{"", "empty", "document", "image", "audio", "video"}

// getArtifact sends the bytes of an artifact. A worker may have sent anything, so the headers make
// a browser save the file, and never show or execute it as a page of this server. The dashboard's
// policy allows scripts of this origin, so an artifact is refused as a script.
func getArtifact(c *call) error {
	if use := c.Header.Get("Sec-Fetch-Dest"); !slices.Contains(inertUses, use) {
		return perdure.Errorf(api.CodeForbidden, "an artifact is not loaded into a page as %s", shortened(use, 30))
	}
	if err := perdure.CheckArtifactName(c.PathValue("name")); err != nil {
		return err
	}
	r, err := c.s.engine.Runs.Artifact(c.Context(), c.tenant(), c.run(), c.PathValue("name"))
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", r.ContentType)
	h.Set("Content-Disposition", `attachment; filename="`+r.Name+`"`)
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("ETag", `"`+r.SHA256+`"`)
	if !strings.HasPrefix(c.Header.Get("Range"), "bytes=") {
		c.Header.Del("Range") // a range in another unit is ignored
	}
	rc := http.NewResponseController(c.w)
	to := &pacedWriter{ResponseWriter: c.w, rc: rc, c: c}
	out := &rangeErrorFilter{ResponseWriter: to}
	http.ServeContent(out, c.Request, "", time.Time{}, turnedReader{r, c})
	c.s.setWriteDeadline(c.w, 0) // net/http writes the last bytes after the handler has returned
	switch {
	case to.dead:
		panic(http.ErrAbortHandler)
	case r.Err != nil && out.status == 0:
		return r.Err
	case r.Err != nil:
		panic(http.ErrAbortHandler) // a partial file must not look complete
	case out.status == http.StatusRequestedRangeNotSatisfiable:
		h.Del("Content-Disposition")
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", r.Size))
		return perdure.Errorf(api.CodeRange, "there are %d bytes", r.Size)
	}
	return nil
}

// A turnedReader reads each chunk of an artifact when its tenant's turn has come. A download that has
// begun goes on even if it gets no turn.
type turnedReader struct {
	*reads.ArtifactReader
	c *call
}

func (r turnedReader) Read(p []byte) (int, error) {
	if r.Loads() {
		end, _ := r.c.share.turn(r.c.Context(), largeRun)
		defer end()
	}
	return r.ArtifactReader.Read(p)
}

// A pacedWriter sets the deadline of each write of a download, and stops when the key is revoked.
type pacedWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	c    *call
	dead bool
	pace pace
}

func (w *pacedWriter) Write(b []byte) (int, error) {
	if w.c.checkKey() == errKey {
		w.dead = true
		return 0, errKey
	}
	began := time.Now()
	_ = w.rc.SetWriteDeadline(began.Add(w.pace.left(w.c.s.opt.BodyTimeout, len(b)))) // a call in process has none
	n, err := w.ResponseWriter.Write(b)
	w.pace.sent += int64(n)
	w.pace.spent += time.Since(began)
	return n, err
}

// A rangeErrorFilter suppresses the 416 response of http.ServeContent, so that getArtifact can
// answer with a problem.
type rangeErrorFilter struct {
	http.ResponseWriter
	status int
}

func (w *rangeErrorFilter) WriteHeader(status int) {
	if w.status = status; status != http.StatusRequestedRangeNotSatisfiable {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *rangeErrorFilter) Write(b []byte) (int, error) {
	if w.status == http.StatusRequestedRangeNotSatisfiable {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}
