package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// bytesOf makes n bytes that depend on the seed.
func bytesOf(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7+i>>8) ^ seed
	}
	return b
}

// send uploads the bytes of an artifact, and gives the operation that creates it.
func (w *World) send(g dispatch.Grant, name string, data []byte) *life.PutArtifact {
	w.t.Helper()
	begin := &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: name,
		Size: int64(len(data))}
	w.do(begin)
	put := &life.PutArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: name,
		ContentType: begin.ContentType, Size: int64(len(data)),
		SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Upload: begin.Upload}
	for n := int64(0); len(data) > 0; n++ {
		k := min(len(data), store.ChunkSize)
		w.do(&life.AddChunk{Tenant: tenant, Upload: begin.Upload, N: n, Data: data[:k]})
		data = data[k:]
	}
	return put
}

func (w *World) put(g dispatch.Grant, name string, data []byte) *life.PutArtifact {
	w.t.Helper()
	op := w.send(g, name, data)
	w.do(op)
	return op
}

// artifact reads all bytes of an artifact.
func (w *World) artifact(id perdure.RunID, name string) []byte {
	w.t.Helper()
	r, err := w.E.Runs.Artifact(w.ctx(), tenant, id, name)
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return b
}

func (w *World) names(id perdure.RunID) string {
	w.t.Helper()
	list, err := w.E.Runs.Artifacts(w.ctx(), tenant, id)
	if err != nil {
		w.t.Fatal(err)
	}
	out := ""
	for _, a := range list {
		out += a.Name + " "
	}
	return out
}

// rows counts the rows of a table.
func (w *World) rows(table string) (n int) {
	w.t.Helper()
	w.view(func(v *store.View) error {
		return v.Rows("SELECT count(*) FROM "+table, nil, func(scan func(...any) error) error { return scan(&n) })
	})
	return n
}

var artifactScenarios = []Scenario{
	{"an artifact is seen when all of it has come, and reads as it was sent", func(w *World) {
		r := w.task()
		g := w.take("w1")
		data := bytesOf(1, 2*store.ChunkSize+1234)
		op := w.send(g, "report.pdf", data)
		w.check(w.names(r.ID) == "", "seen too early: %s", w.names(r.ID))
		w.do(op)
		w.check(op.Created && op.Artifact.Attempt == 1 && op.Artifact.ContentType == perdure.AnyContent &&
			op.Artifact.Size == int64(len(data)), "%+v", op.Artifact)
		w.check(w.names(r.ID) == "report.pdf ", "%s", w.names(r.ID))
		w.check(bytes.Equal(w.artifact(r.ID, "report.pdf"), data), "other bytes")
		from, err := w.E.Runs.Artifact(w.ctx(), tenant, r.ID, "report.pdf")
		w.check(err == nil, "%v", err)
		for _, at := range []int64{store.ChunkSize - 3, 2*store.ChunkSize + 1230, 5} {
			part := make([]byte, 4)
			_, err := from.Seek(at, io.SeekStart)
			w.check(err == nil, "%v", err)
			_, err = io.ReadFull(from, part)
			w.check(err == nil && bytes.Equal(part, data[at:at+4]), "at %d: %v %v", at, part, err)
		}
		w.put(g, "empty", nil)
		w.check(len(w.artifact(r.ID, "empty")) == 0, "not empty")
		w.complete(g, `1`)
		w.check(w.names(r.ID) == "empty report.pdf " && w.rows("removals") == 0, "%s %d", w.names(r.ID),
			w.rows("removals"))
	}},
	{"the same bytes are stored once, and as long as somebody has them", func(w *World) {
		a, b := w.task(), w.task()
		ga, gb := w.take("w1"), w.take("w1")
		data := bytesOf(2, store.ChunkSize+7)
		w.put(ga, "one", data)
		w.put(ga, "two", data)
		w.put(gb, "three", data)
		w.retire()
		w.check(w.rows("contents") == 1 && w.rows("chunks") == 2 && w.rows("removals") == 0,
			"%d contents, %d chunks, %d removals", w.rows("contents"), w.rows("chunks"), w.rows("removals"))
		w.put(ga, "one", bytesOf(3, 9))
		w.put(ga, "two", bytesOf(3, 9))
		w.retire()
		w.check(bytes.Equal(w.artifact(b.ID, "three"), data) && len(w.artifact(a.ID, "two")) == 9, "gone")
		w.put(gb, "three", bytesOf(4, 10))
		w.retire()
		w.check(w.rows("contents") == 2 && w.rows("chunks") == 2, "%d contents, %d chunks", w.rows("contents"),
			w.rows("chunks"))
		w.check(bytes.Equal(w.artifact(b.ID, "three"), bytesOf(4, 10)), "other bytes")
	}},
	{"the same name with the same bytes changes nothing", func(w *World) {
		r := w.task()
		g := w.take("w1")
		first := w.put(g, "x", bytesOf(5, 100))
		w.Now = w.Now.Add(time.Second)
		again := w.put(g, "x", bytesOf(5, 100))
		w.check(!again.Created && again.Artifact == first.Artifact, "%+v", again.Artifact)
		other := w.put(g, "x", bytesOf(6, 101))
		w.check(!other.Created && other.Artifact.At == w.Now, "%+v", other.Artifact)
		w.check(bytes.Equal(w.artifact(r.ID, "x"), bytesOf(6, 101)), "replaced")
		w.retire()
		w.check(w.rows("chunks") == 1, "%d chunks", w.rows("chunks"))
	}},
	{"of bytes that replace each other in one batch only the last stay, and none outlive their run", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.put(g, "x", bytesOf(1, 100))
		var ops []kernel.Op
		for _, seed := range []byte{2, 3, 3, 1, 4, 2, 5, 1, 6} { // some come back after they were replaced
			ops = append(ops, w.send(g, "x", bytesOf(seed, 100)))
		}
		w.all(ops)
		w.fsck()
		w.retire()
		w.check(bytes.Equal(w.artifact(r.ID, "x"), bytesOf(6, 100)), "%s does not read as it was sent last", r.ID)
		w.check(w.rows("contents") == 1 && w.rows("chunks") == 1 && w.rows("removals") == 0,
			"of one artifact there are %d contents, %d chunks, %d removals, want 1, 1, 0",
			w.rows("contents"), w.rows("chunks"), w.rows("removals"))
		w.complete(g, `1`)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID})
		w.retire()
		w.retire() // the bytes follow the run
		w.check(w.rows("contents")+w.rows("chunks")+w.rows("removals") == 0,
			"after its run was deleted there are %d contents, %d chunks, %d removals",
			w.rows("contents"), w.rows("chunks"), w.rows("removals"))
	}},
	{"bytes that two names have stay until both are replaced, in whichever batch", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.put(g, "x", bytesOf(1, 100))
		w.all([]kernel.Op{w.send(g, "x", bytesOf(2, 100)), w.send(g, "y", bytesOf(1, 100)),
			w.send(g, "x", bytesOf(1, 100)), w.send(g, "y", bytesOf(3, 100))})
		w.retire()
		w.check(bytes.Equal(w.artifact(r.ID, "x"), bytesOf(1, 100)) && bytes.Equal(w.artifact(r.ID, "y"),
			bytesOf(3, 100)), "other bytes")
		w.check(w.rows("contents") == 2 && w.rows("chunks") == 2,
			"of two artifacts there are %d contents, %d chunks", w.rows("contents"), w.rows("chunks"))
	}},
	{"only who holds the run leaves artifacts", func(w *World) {
		r := w.task()
		begin := func(epoch int64) *life.BeginArtifact {
			return &life.BeginArtifact{Tenant: tenant, RunID: r.ID, Epoch: epoch, Name: "x"}
		}
		w.refuse(perdure.CodeStaleEpoch, begin(1))
		frozen := w.take("frozen")
		late := w.send(frozen, "x", bytesOf(7, 10))
		w.pass(65 * time.Second)
		g := w.take("healthy")
		w.refuse(perdure.CodeStaleEpoch, begin(frozen.Run.Epoch))
		w.refuse(perdure.CodeStaleEpoch, late)
		w.put(g, "x", bytesOf(8, 10))
		w.refuse(perdure.CodeNotFound, &life.BeginArtifact{Tenant: "other", RunID: r.ID, Epoch: g.Run.Epoch,
			Name: "x"})
		_, err := w.E.Runs.Artifacts(w.ctx(), "other", r.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "%v", err)
		ready := w.send(g, "y", bytesOf(8, 10))
		w.complete(g, `1`)
		w.refuse(perdure.CodeStaleEpoch, ready)
		w.refuse(perdure.CodeStaleEpoch, begin(g.Run.Epoch))
		w.check(w.names(r.ID) == "x ", "%s", w.names(r.ID))
	}},
	{"an upload is a sign of life, and one that is under way outlives its run's cancel request", func(w *World) {
		r := w.task()
		g := w.take("w1")
		op := w.send(g, "x", bytesOf(9, 10))
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		w.Now = w.Now.Add(10 * time.Second)
		w.do(op)
		w.check(w.get(r.ID).SeenAt == w.Now, "not heard")
	}},
	{"what is too much for a run is refused", func(w *World) {
		w.task()
		g := w.take("w1")
		p := w.E.Policy()
		begin := func(name string, size int64) *life.BeginArtifact {
			return &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: name, Size: size}
		}
		w.refuse(perdure.CodeTooLarge, begin("x", p.ArtifactMaxBytes+1))
		p.ArtifactMaxBytes, p.ArtifactTotalBytes = 1000, 4000
		for i := range 4 {
			w.put(g, fmt.Sprint("large", i), bytesOf(byte(i), 1000))
		}
		w.refuse(perdure.CodeTooLarge, begin("x", 1))
		unsaid := w.send(g, "x", nil)
		unsaid.Size = 1
		w.refuse(perdure.CodeTooLarge, unsaid)
		for i := range perdure.MaxArtifacts - 4 {
			w.put(g, fmt.Sprint("empty", i), nil)
		}
		w.refuse(perdure.CodeTooLarge, begin("one-more", 0))
		w.do(begin("empty7", 0))
	}},
	{"names with tricks are refused", func(w *World) {
		w.task()
		g := w.take("w1")
		for _, name := range []string{"", ".", "..", ".hidden", "-rf", "_x", "a/b", `a\b`, "../x", "a b", "a\n",
			"a\x00", "é", "a:b", "a%2f", "a*", "~", strings.Repeat("a", 129)} {
			w.refuse(perdure.CodeInvalid, &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID,
				Epoch: g.Run.Epoch, Name: name})
		}
		for _, media := range []string{"text", "text/", "/", "a b", "text/html\r\nX: y", "text/plain; charset",
			"\x00/x", "text/" + strings.Repeat("a", 300)} {
			w.refuse(perdure.CodeInvalid, &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID,
				Epoch: g.Run.Epoch, Name: "x", ContentType: media})
		}
		for _, name := range []string{"a", "0", "A.b-c_d", "x..y", strings.Repeat("a", 128), "CON"} {
			w.do(&life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: name,
				ContentType: "Text/HTML; Charset=UTF-8"})
		}
	}},
	{"an upload that nobody finishes is swept after an hour", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		op := w.send(g, "x", bytesOf(1, 40*store.ChunkSize/10))
		w.retire()
		w.check(w.rows("chunks") == 4, "swept too early")
		for range 4 {
			w.Now = w.Now.Add(15*time.Minute - 10*time.Second)
			w.beat(g)
			w.sweep()
		}
		w.refuse(perdure.CodeUnavailable, op)
		w.Now = w.Now.Add(2 * time.Minute)
		w.retire()
		w.check(w.rows("chunks") == 0 && w.rows("removals") == 0, "%d chunks, %d removals", w.rows("chunks"),
			w.rows("removals"))
		w.refuse(perdure.CodeUnavailable, op)
	}},
	{"what comes of an upload after its hour is refused, and nothing of it stays", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		begin := &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: "x"}
		w.do(begin)
		chunk := func(n int64) *life.AddChunk {
			return &life.AddChunk{Tenant: tenant, Upload: begin.Upload, N: n, Data: bytesOf(1, 100)}
		}
		w.do(chunk(0))
		w.refuse(perdure.CodeUnavailable, &life.AddChunk{Tenant: "other", Upload: begin.Upload, N: 1,
			Data: bytesOf(1, 100)})
		w.Now = w.Now.Add(time.Hour - 30*time.Second)
		w.refuse(perdure.CodeUnavailable, chunk(1))
		w.Now = w.Now.Add(time.Minute)
		w.retire()
		w.refuse(perdure.CodeUnavailable, chunk(1))
		w.do(&life.EndUpload{Tenant: tenant, Upload: begin.Upload})
		w.retire()
		w.check(w.rows("chunks") == 0 && w.rows("removals") == 0, "%d chunks, %d removals", w.rows("chunks"),
			w.rows("removals"))
		given := &life.BeginArtifact{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, Name: "x"}
		w.do(given)
		w.do(&life.EndUpload{Tenant: tenant, Upload: given.Upload})
		w.refuse(perdure.CodeUnavailable, &life.AddChunk{Tenant: tenant, Upload: given.Upload, Data: bytesOf(1, 100)})
	}},
}
