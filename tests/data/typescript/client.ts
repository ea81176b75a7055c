// Asks a gateway for a completion through generated code, token by token, and then for what it must refuse.

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { GatewayService } from "./slipstream/v1/gateway_pb.js";
import { FinishReason } from "./slipstream/v1/sampling_pb.js";

declare const process: { argv: string[] };
declare const console: { log(line: string): void };

const client = createClient(GatewayService, createGrpcTransport({ baseUrl: `http://${process.argv[2]}` }));

const ids: number[] = [];
let seed: bigint | undefined;
let finish = FinishReason.UNSPECIFIED;
const request = {
  prompt: { case: "tokenIds" as const, value: { ids: [65, 66, 67] } },
  sampling: { seed: 2n ** 63n + 1n, maxTokens: 5, ignoreEos: true },
};
for await (const answer of client.generate(request)) {
  ids.push(...answer.tokenIds);
  seed ??= answer.seed;
  finish = answer.finishReason || finish;
}

let refusal: ConnectError | undefined;
try {
  for await (const _ of client.generate({ ...request, sampling: { temperature: 9 } })) {
  }
} catch (error) {
  refusal = ConnectError.from(error);
}
const code = refusal && Code[refusal.code];
console.log(JSON.stringify({ ids, seed: String(seed), finish: FinishReason[finish], code, message: refusal?.rawMessage }));
