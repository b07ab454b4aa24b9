package admin_test

import (
	"context"
	"fmt"
	"log"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
)

// An operator gives a team a key, and pauses a queue of that team. The client's own key is one of the
// platform.
func Example() {
	ctx := context.Background()
	srv, err := embedded.Open(embedded.Options{}) // in this process; a server elsewhere has a URL
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})

	key, err := admin.New(c).CreateTenantKey(ctx, "acme", api.CreateKey{Name: "reports",
		Scopes: []string{"runs:create", "runs:read"}})
	if err != nil {
		log.Fatal(err)
	}
	team := client.New("http://perdure", key.Secret, client.Options{Transport: srv.Transport()})
	if _, err := team.Start(ctx, perdure.Submission{Kind: "report", Queue: "slow"}); err != nil {
		log.Fatal(err)
	}
	paused, err := admin.New(c.For("acme")).PauseQueue(ctx, "slow", api.PauseQueue{Reason: "the disk is full"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(paused.Name, "is paused:", paused.Paused.Reason)
	// Output: slow is paused: the disk is full
}
