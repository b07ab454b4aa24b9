package doorbell

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
)

// Check sends a message to itself over the medium of an address and returns the time that it took.
// It uses a channel of its own, so that no node is woken.
func Check(ctx context.Context, address string) (time.Duration, error) {
	if err := (Options{URL: address}).Validate(); err != nil {
		return 0, err
	}
	word := strings.ToLower(rand.Text())
	switch scheme(address) {
	case "", "none":
		return 0, nil
	case "postgres", "postgresql":
		return checkPostgres(ctx, address, "perdure_check_"+word)
	}
	return checkNATS(ctx, address, "perdure.check."+word)
}

// checkPostgres listens on one connection and notifies on another. Behind a pooler that assigns
// connections per transaction, the notification does not arrive.
func checkPostgres(ctx context.Context, address, channel string) (time.Duration, error) {
	config, err := pgConfig(address)
	if err != nil {
		return 0, err
	}
	in, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer in.Close(ctx)
	out, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer out.Close(ctx)
	if err := in.Exec(ctx, "LISTEN "+channel).Close(); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := out.Exec(ctx, "NOTIFY "+channel).Close(); err != nil {
		return 0, err
	}
	if err := in.WaitForNotification(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.New("LISTEN does not hear NOTIFY: " +
				"a pooler that hands out connections per transaction can't carry it")
		}
		return 0, err
	}
	return time.Since(begin), nil
}

func checkNATS(ctx context.Context, address, subject string) (time.Duration, error) {
	conn, err := nats.Connect(address, nats.Name("perdure check"), nats.Timeout(stepTimeout))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	sub, err := conn.SubscribeSync(subject)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := conn.Publish(subject, nil); err != nil {
		return 0, err
	}
	if _, err := sub.NextMsgWithContext(ctx); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}
