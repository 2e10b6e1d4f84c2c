// What a service on a real gRPC server is asked, and what it is to answer instead of doing its work. Any call can be made to fail,
// before it does its work or after, and to wait.
import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Attachment as AttachmentMessage } from '@podwire/proto/podwire/net/v1/attachment';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { Handler } from '@podwire/shared/rpc/unary';
import { trace } from '@opentelemetry/api';
import { expect, vi } from 'vitest';

export type Method =
  | 'Allocate'
  | 'Release'
  | 'GetEndpoint'
  | 'GetPool'
  | 'AuthorizeRequests'
  | 'ReleaseAddresses'
  | 'ExplainAllocation'
  | 'ListEndpoints'
  | 'AttachPod'
  | 'DetachPod'
  | 'CheckPod'
  | 'ListPods'
  | 'CollectGarbage';

interface PlannedFault {
  readonly method: Method;
  readonly error: Error;
  /** Whether the work is done all the same, so that only the answer is lost. */
  readonly afterWork: boolean;
}

/** What the services were asked, and what they are to answer instead. */
export class Script {
  /** Method and attachment of every call, in order of arrival. */
  readonly calls: string[] = [];
  /** Trace that each call came under. */
  readonly traceIds: (string | undefined)[] = [];
  /** The calls' messages. */
  readonly requests: { readonly method: Method; readonly request: object }[] = [];
  /** Methods that the services lack, as those of an earlier release. */
  readonly lacks = new Set<Method>();
  readonly #faults: PlannedFault[] = [];
  readonly #holds = new Map<Method, Promise<void>>();

  failNext(method: Method, error: Error, { afterWork = false } = {}): void {
    this.#faults.push({ method, error, afterWork });
  }

  /** Failures that nobody ran into: a test that planned one has to meet it. */
  unusedFaults(): string[] {
    return this.#faults.map(({ method, error }) => `${method}: ${error.message}`);
  }

  /** Makes the calls of a method wait. @returns what lets them go on */
  hold(method: Method): () => void {
    let letGo = () => undefined;
    const held = new Promise<void>((resolve) => {
      letGo = () => {
        this.#holds.delete(method);
        resolve();
      };
    });
    this.#holds.set(method, held);
    return letGo;
  }

  /** Resolves when a method has been called. */
  async untilCalled(method: string): Promise<void> {
    await vi.waitFor(() => expect(this.calls.join('\n')).toContain(method), { interval: 2, timeout: 20_000 });
  }

  /** A handler that notes its calls, waits where it is held, and fails where that is planned. */
  play<Request extends object, Response>(
    method: Method,
    work: (request: Request) => Response,
  ): Handler<Request, Response> {
    return async (request, { signal }) => {
      this.requests.push({ method, request });
      this.calls.push(`${method}${subjectOf(request)}`);
      this.traceIds.push(trace.getActiveSpan()?.spanContext().traceId);
      const cut = new Promise<never>((_, reject) => {
        signal.addEventListener('abort', () => reject(new Failure('CANCELLED', 'the caller gave up')), { once: true });
      });
      cut.catch(() => undefined);
      const hold = this.#holds.get(method);
      if (hold) await Promise.race([hold, cut]);
      if (this.lacks.has(method)) throw new Failure('UNIMPLEMENTED', `the service does not know ${method}`);
      const fault = this.#take(method);
      if (fault && !fault.afterWork) throw fault.error;
      const response = work(request);
      if (fault) throw fault.error;
      return response;
    };
  }

  #take(method: Method): PlannedFault | undefined {
    const index = this.#faults.findIndex((fault) => fault.method === method);
    return index < 0 ? undefined : this.#faults.splice(index, 1)[0];
  }
}

function subjectOf(request: object): string {
  const about = 'pod' in request && isAbout(request.pod) ? request.pod : request;
  return isAbout(about) && about.attachment ? ` ${formatAttachment(about.attachment)}` : '';
}

function isAbout(value: unknown): value is { attachment: Attachment | undefined } {
  return typeof value === 'object' && value !== null && 'attachment' in value;
}

/** The attachment of a request. @throws Failure INVALID_REQUEST as the services answer */
export function checked(attachment: AttachmentMessage | undefined): AttachmentMessage {
  const faults = attachment
    ? attachmentFaults(attachment).map(({ field, reason }) => ({ field: `attachment.${field}`, reason }))
    : [{ field: 'attachment', reason: 'is missing' }];
  if (!attachment || faults.length > 0) throw violationsFailure('INVALID_REQUEST', 'request refused', faults);
  return attachment;
}
