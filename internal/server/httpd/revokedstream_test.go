package httpd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A revoked key ends its streams and sockets within a second: on the node that revokes it, and on another one that no
// ring reaches and that has to look.
func TestStreamsOfRevokedKeyEnd(t *testing.T) {
	for name, nodes := range map[string]func(t *testing.T) (revokes, serves *world){
		"on the same node": func(t *testing.T) (*world, *world) { w := newWorld(t, setup{}); return w, w },
		"on another node":  twoNodes,
	} {
		t.Run(name, func(t *testing.T) {
			revokes, w := nodes(t)
			secret := w.newKey("a", nil)
			other := w.as(secret)
			s := other.attach(w.start(`{"kind":"job"}`), "")
			s.next("stream:attached")
			x, _ := other.watch("")
			ended := make(chan string, 2)
			go func() {
				_, err := s.rest()
				ended <- fmt.Sprint("the stream: ", err)
			}()
			go func() {
				for {
					if _, _, err := x.conn.Read(context.Background()); err != nil {
						ended <- fmt.Sprint("the WebSocket: ", err)
						return
					}
				}
			}()
			revokes.revoke(strings.Split(secret, "_")[1])
			revoked := time.Now()
			for range 2 {
				select {
				case what := <-ended:
					if took := time.Since(revoked); took > time.Second {
						t.Errorf("%s, %s after the key was revoked, want within a second", what, took)
					}
				case <-time.After(eventually.Within):
					t.Fatal("a stream of a revoked key goes on, want its end within a second")
				}
			}
		})
	}
}
