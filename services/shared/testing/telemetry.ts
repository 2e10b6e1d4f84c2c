import process from 'node:process';
import { setTimeout as pause } from 'node:timers/promises';

import { context, metrics, propagation, ROOT_CONTEXT } from '@opentelemetry/api';

import { systemClock } from '../runtime/clock.js';
import { createLogger } from '../runtime/log.js';
import { withSpan } from '../telemetry/span.js';
import { startTelemetry } from '../telemetry/telemetry.js';

/** A program that continues the trace context of its argument, and prints the context that it would propagate. */

const log = createLogger({ service: 'fixture', level: 'info' });
const stop = await startTelemetry({
  service: 'podwire-fixture',
  instance: 'node-1',
  nodeName: 'node-1',
  metricsPort: 0,
  env: process.env,
  clock: systemClock,
  log,
});
metrics.getMeter('fixture').createCounter('fixture.works').add(1);
const incoming = propagation.extract(ROOT_CONTEXT, { traceparent: process.argv[2] ?? '', baggage: 'tenant=a' });
const outgoing = await context.with(incoming, async () => {
  await pause(1);
  return withSpan('some work', {}, async () => {
    await pause(1);
    log.info('worked');
    const headers = {};
    propagation.inject(context.active(), headers);
    return headers;
  });
});
await stop();
process.stdout.write(JSON.stringify(outgoing));
