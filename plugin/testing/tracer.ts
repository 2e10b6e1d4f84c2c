// A tracer that keeps the spans of the code under test, for the API's global provider.
import {
  context,
  INVALID_SPAN_CONTEXT,
  trace,
  type Attributes,
  type Context,
  type HrTime,
  type Span,
  type SpanOptions,
  type TimeInput,
  type Tracer,
} from '@opentelemetry/api';

interface RecordedSpan {
  readonly name: string;
  /** Name of the parent, where that was recorded. */
  readonly parent: string | undefined;
  readonly traceId: string;
  readonly attributes: Attributes;
  readonly startTime: TimeInput | undefined;
  endTime: TimeInput | undefined;
  failed: boolean;
  /** Names of events. */
  readonly events: string[];
}

export class RecordingTracer implements Tracer {
  readonly spans: RecordedSpan[] = [];
  readonly #names = new Map<string, string>();

  startSpan(name: string, options: SpanOptions = {}, parentContext: Context = context.active()): Span {
    const parent = trace.getSpanContext(parentContext);
    const spanId = String(this.#names.size + 1).padStart(16, '0');
    const traceId = parent?.traceId ?? 'f'.repeat(32);
    this.#names.set(spanId, name);
    const recorded: RecordedSpan = {
      name,
      parent: this.#names.get(parent?.spanId ?? ''),
      traceId,
      attributes: { ...options.attributes },
      startTime: options.startTime,
      endTime: undefined,
      failed: false,
      events: [],
    };
    this.spans.push(recorded);
    return recordingSpan(recorded, spanId);
  }

  startActiveSpan(name: string, ...rest: unknown[]): never;
  startActiveSpan<Result>(name: string, options: SpanOptions, work: (span: Span) => Result): Result {
    const span = this.startSpan(name, options);
    return context.with(trace.setSpan(context.active(), span), () => work(span));
  }

  /** Spans of a name. */
  named(name: string): RecordedSpan[] {
    return this.spans.filter((span) => span.name === name);
  }
}

function recordingSpan(recorded: RecordedSpan, spanId: string): Span {
  const span: Span = {
    spanContext: () => ({ ...INVALID_SPAN_CONTEXT, traceId: recorded.traceId, spanId, traceFlags: 1 }),
    setAttribute(name, value) {
      recorded.attributes[name] = value;
      return span;
    },
    setAttributes(attributes) {
      Object.assign(recorded.attributes, attributes);
      return span;
    },
    addEvent(name) {
      recorded.events.push(name);
      return span;
    },
    addLink: () => span,
    addLinks: () => span,
    setStatus() {
      recorded.failed = true;
      return span;
    },
    updateName: () => span,
    end(time?: HrTime) {
      recorded.endTime = time;
    },
    isRecording: () => true,
    recordException: () => undefined,
  };
  return span;
}
