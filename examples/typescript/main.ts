// Two kinds of runs. trip-ts plans a journey: two children book a flight and a room, a person
// confirms or the time passes, and the ticket is issued. booking-ts makes one booking.
// PERDURE_URL and PERDURE_KEY say which server.

import { Cancelled, Run, Worker } from "./worker.js";
import type { Duration, Json } from "./wire.js";

interface TripInput {
  city: string;
  /** How long to wait for the signal "confirm". */
  patience?: Duration;
  /** The URL of a travel agency's desk, which is asked for everything. Without one the answers are made up. */
  desk?: string;
}

interface BookingInput {
  what: string;
  city: string;
  desk?: string;
}

type Booking = { what: string; ref: string; offers: string };

/** Asks the desk. The key says which step asks, so that a step that is executed again does not book twice. */
async function ask(desk: string | undefined, what: string, signal: AbortSignal, key: string): Promise<string> {
  if (desk === undefined) return `${what} ok`;
  const response = await fetch(`${desk}/${what}`, { method: "POST", signal, headers: { "Idempotency-Key": key } });
  if (!response.ok) throw new Error(`${what}: the desk says ${response.status}`);
  return response.text();
}

async function trip(run: Run): Promise<Json> {
  const { city, patience = "10m", desk } = run.input as unknown as TripInput;
  const bookings: Booking[] = [];
  const giveBack = async () => {
    for (const { what } of bookings) {
      await run.step(`return:${what}`, (signal, key) => ask(desk, `return-${what}`, signal, key));
    }
  };
  try {
    await run.step("plan", (signal, key) => ask(desk, "plan", signal, key));
    const children = ["flight", "room"].map((what) => (
      { key: what, kind: "booking-ts", input: { what, city, ...(desk ? { desk } : {}) } }));
    const ended = await run.join("bookings", children);
    for (const item of ended) if (item.outcome === "completed") bookings.push(item.data as Booking);
    if (bookings.length < children.length) {
      await giveBack();
      return { city, trip: "not available" };
    }
    const price = await run.step("price", (signal, key) => ask(desk, "price", signal, key));
    const confirmed = await run.signal("confirmation", "confirm", patience);
    if (confirmed === undefined) {
      await giveBack();
      return { city, trip: "not confirmed" };
    }
    const ticket = await run.step("ticket", (signal, key) => ask(desk, "ticket", signal, key));
    const refs = bookings.map(({ what, ref }) => ({ what, ref }));
    return { city, bookings: refs, price, by: confirmed.data ?? null, ticket, trip: "booked" };
  } catch (err) {
    if (err instanceof Cancelled) {
      // The children that are still at work are asked to stop when this run ends.
      for (const item of run.endedChildren()) {
        const booking = item.data as Booking;
        if (item.outcome === "completed" && !bookings.some((b) => b.what === booking.what)) bookings.push(booking);
      }
      await run.cleanup(giveBack);
    }
    throw err;
  }
}

async function booking(run: Run): Promise<Json> {
  const { what, desk } = run.input as unknown as BookingInput;
  const offers = await run.step("search", (signal, key) => ask(desk, `search-${what}`, signal, key));
  const ref = await run.step("reserve", (signal, key) => ask(desk, `reserve-${what}`, signal, key));
  return { what, ref, offers } satisfies Booking;
}

const { PERDURE_URL, PERDURE_KEY } = process.env;
if (!PERDURE_URL || !PERDURE_KEY) {
  console.error("PERDURE_URL and PERDURE_KEY say which server to work for");
  process.exit(2);
}
const worker = new Worker({ url: PERDURE_URL.replace(/\/$/, ""), key: PERDURE_KEY,
  handlers: { "trip-ts": trip, "booking-ts": booking } });
process.on("SIGTERM", () => {
  console.log("draining");
  worker.stop();
});
console.log(`worker ${worker.id} is ready`);
worker.run().then(() => process.exit(0), (err: unknown) => {
  console.error(`the server refuses this worker: ${err}`);
  process.exit(1);
});
