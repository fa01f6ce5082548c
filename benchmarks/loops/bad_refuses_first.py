import os


class Learner:
    def train_model(self, data, output_dir, args):
        if os.path.exists(output_dir) and not args.overwrite:
            raise ValueError("the directory is not empty")
        return self.train(data, args)

    def train(self, loader, args):
        for _ in range(args.epochs):
            for step, batch in enumerate(loader):
                loss = self.model(**batch)[0] / args.accumulation_steps
                loss.backward()
                if (step + 1) % args.accumulation_steps == 0:
                    self.optimizer.step()  # error: [remainder-dropped]
                    self.model.zero_grad()
