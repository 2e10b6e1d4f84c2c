export interface ReceivedSpan {
  readonly name: string;
  readonly durationMs: number;
}

export class SpanReceiver {
  listen(): Promise<string>;
  close(): void;
  traceOf(traceId: string, expected: Readonly<Record<string, number>>): Promise<ReceivedSpan[]>;
}
